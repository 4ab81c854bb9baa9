"""An index of what was kept: the next crawl is compared with it and only its own documents can go.

The folder holds signature shards of the kept documents with their feature sets (8 bytes a shingle), and the settings
they were made with; other settings are an error and never a silent "no match".
"""

from collections.abc import Sequence
from pathlib import Path

from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.dedup.keep import KeepPolicy
from hf_pretrain.corpus.dedup.methods import DedupMethod
from hf_pretrain.corpus.dedup.stage_files import StageFolder
from hf_pretrain.utils.errors import UserError


class DedupIndex:
    """Opens an index.

    Args:
        folder (`str`, `Path` or a list of them): Folders that [`BuildDedupIndex`] wrote, perhaps in several runs.
        method (`DedupMethod`): The method it is used with.
        policy (`KeepPolicy`, *optional*): Names of the metadata fields.

    Raises:
        UserError: If there is no index, or it was made with other settings.
    """

    def __init__(
        self, folder: str | Path | Sequence[str | Path], method: DedupMethod, policy: KeepPolicy | None = None
    ) -> None:
        self.folders: list[Path] = []
        self.rows: list[int] = []
        for root in [folder] if isinstance(folder, str | Path) else folder:
            self.stage = StageFolder(root, method, policy or KeepPolicy())
            found = sorted(path for path in Path(root).glob("*/[0-9]*") if path.is_dir())
            if not found:
                raise UserError(f"dedup index = {root}; there is no index in that folder, or it is empty.")
            self.folders += found
            self.rows += [self.stage.check(path.parent.name, path.name)["rows"] for path in found]


class BuildDedupIndex(PipelineStep):
    """Writes the documents that pass into an index, and passes them on.

    Args:
        folder (`str` or `Path`): The index; runs with other names add to it.
        method (`DedupMethod`): The method it is for.
        policy (`KeepPolicy`, *optional*): Names of the metadata fields.
        run_name (`str`, *optional*, defaults to `"crawl"`): Name of this addition; the same name replaces it.
    """

    name = "Deduplication index"
    type = "DEDUP"

    def __init__(
        self, folder: str | Path, method: DedupMethod, policy: KeepPolicy | None = None, run_name: str = "crawl"
    ) -> None:
        super().__init__()
        self.folder, self.run_name = Path(folder), run_name
        self.stage_folder = StageFolder(folder, method, policy or KeepPolicy())

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Writes one shard of the index.

        Args:
            data (`DocumentsPipeline`): Documents that stay.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: Every document.
        """
        target = self.folder / self.run_name / f"{rank:05d}"
        yield from self.stage_folder.write_signatures(data, rank, world_size, with_features=True, target=target)
