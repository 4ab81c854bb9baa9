"""The datatrove block that keeps benchmark items out of a corpus."""

import json
from pathlib import Path

from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.batching import batched
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.contamination.index import ContaminationIndex, ContaminationSettings
from hf_pretrain.corpus.contamination.matching import remove_word_spans
from hf_pretrain.corpus.contamination.report import match_record
from hf_pretrain.corpus.word_hashes import hash_words


_BATCH = 64


class DecontaminationFilter(PipelineStep):
    """Searches documents for benchmark items; drops them, cuts the items out, or only reports.

    Every finding is written to `<findings_dir>/<rank>.jsonl`.

    Args:
        index_dir (`str`): Folder of a saved [`ContaminationIndex`].
        settings (`ContaminationSettings`): Settings the index must have.
        findings_dir (`str`): Where findings go.
        action (`str`, *optional*, defaults to `"drop"`): `"drop"` the document, `"remove_span"` (what is left must
            have `min_words_left` words), or `"report"`.
        min_words_left (`int`, *optional*, defaults to 50): Fewest words left after a cut.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Benchmark decontamination"
    type = "FILTER"

    def __init__(
        self,
        index_dir: str,
        settings: ContaminationSettings,
        findings_dir: str,
        action: str = "drop",
        min_words_left: int = 50,
        exclusion_writer=None,
    ) -> None:
        super().__init__()
        self.index_dir, self.settings, self.findings_dir = index_dir, settings, findings_dir
        self.action, self.min_words_left, self.exclusion_writer = action, min_words_left, exclusion_writer

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Passes the clean documents on.

        Args:
            data (`DocumentsPipeline`): Documents.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: Documents that stay.
        """
        index = ContaminationIndex.load(self.index_dir, self.settings)
        folder = Path(self.findings_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{rank:05d}.jsonl", "w", encoding="utf-8") as findings:
            for batch in batched(data, _BATCH):
                with self.track_time("batch"):
                    found = index.match_texts([document.text for document in batch])
                for document, matches in zip(batch, found, strict=True):
                    self.stat_update(StatHints.total)
                    for match in matches:
                        source = document.metadata.get("source", "")
                        row = match_record(document.id, document.metadata.get("url"), source, match)
                        findings.write(json.dumps(row, ensure_ascii=False) + "\n")
                    if matches and not self._keep(document, matches):
                        self.stat_update(StatHints.dropped)
                        if self.exclusion_writer is not None:
                            self.exclusion_writer.write(document, rank)
                        continue
                    self.stat_update(StatHints.forwarded)
                    yield document

    def _keep(self, document, matches) -> bool:
        reason = f"contaminated_{matches[0].benchmark}"
        if self.action == "report":
            return True
        if self.action == "remove_span":
            document.text = remove_word_spans(document.text, [(match.start, match.stop) for match in matches])
            if len(hash_words([document.text]).hashes) >= self.min_words_left:
                document.metadata["contaminated_spans_removed"] = len(matches)
                return True
        document.metadata["filter_reason"] = reason
        return False
