"""Source code: folders of files, and tar or zip archives of them. One file, one document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.archives import TAR_SUFFIXES, ZIP_SUFFIXES, read_members
from hf_pretrain.corpus.ingest.code_files import SKIPPED_FOLDERS, programming_language, unwanted
from hf_pretrain.corpus.ingest.licenses import LICENSE_FILE, license_of
from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader


_LICENSE_BYTES = 200_000
_HEAD = 3000


class CodeSource(SourceReader):
    """
    Files of code trees and archives (tar, plain or packed; zip), with their language and licence.

    The licence is that of the file's own `SPDX-License-Identifier` line or licence header, else that of the nearest
    `LICENSE` or `COPYING` above it. Left out and counted: `skipped_not_code`, `skipped_vendored` (`node_modules` and
    the like), `skipped_language`, `skipped_license`, `skipped_large`, `skipped_generated`, `skipped_minified`,
    `skipped_long_line`, `skipped_symbols`, `skipped_empty`, and links and devices of archives. Metadata: `path`,
    `programming_language`.
    """

    name = "Code source"

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._folder_licenses: dict[Path, str | None] = {}
        self._top = Path(config.path).expanduser().absolute() if Path(config.path).is_dir() else self.root

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Files of one archive, or the one file.

        Args:
            path (`Path`): An archive or a source file.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: number of the file from 0, and its text.
        """
        if not path.name.endswith((*TAR_SUFFIXES, *ZIP_SUFFIXES)):
            yield 0, self._tree_file(path)
            return
        licenses = self._archive_licenses(path)
        for row, (name, content) in enumerate(read_members(path, self.config.max_document_bytes)):
            if isinstance(content, bytes):
                above = [str(parent) for parent in PurePosixPath(name).parents]
                found = next((licenses[parent] for parent in above if parent in licenses), None)
                yield row, self._file(name, content, found)
            else:
                yield row, content

    def _archive_licenses(self, path: Path) -> dict[str, str]:
        """Licence by folder; a first pass, for the file may stand after those that it covers."""
        licenses: dict[str, str] = {}
        with contextlib.suppress(FileFault):  # the second pass meets it again and reports it
            for name, content in read_members(path, _LICENSE_BYTES):
                member = PurePosixPath(name)
                if isinstance(content, bytes) and LICENSE_FILE.match(member.name):
                    if found := license_of(content.decode("utf-8", "replace")):
                        licenses.setdefault(str(member.parent), found)
        return licenses

    def _tree_file(self, path: Path) -> Row:
        if path.is_symlink():
            return Skipped("link")
        if path.stat().st_size > self.config.kind_options.max_file_bytes:
            return Skipped("large" if programming_language(path.name) else "not_code")
        above = [folder for folder in path.parents if self._top == folder or self._top in folder.parents]
        found = next(filter(None, map(self._folder_license, above)), None)
        return self._file(str(path.relative_to(self.root)), path.read_bytes(), found)

    def _folder_license(self, folder: Path) -> str | None:
        if folder not in self._folder_licenses:
            texts = [file for file in sorted(folder.iterdir()) if LICENSE_FILE.match(file.name) and file.is_file()]
            small = [file for file in texts if file.stat().st_size <= _LICENSE_BYTES]
            found = (license_of(file.read_text("utf-8", "replace")) for file in small)
            self._folder_licenses[folder] = next(filter(None, found), None)
        return self._folder_licenses[folder]

    def _file(self, name: str, content: bytes, project_license: str | None) -> Row:
        options = self.config.kind_options
        if not SKIPPED_FOLDERS.isdisjoint(PurePosixPath(name).parts):
            return Skipped("vendored")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if programming_language(name) is None:
                return Skipped("not_code")
            return RowFault("binary", f"{name!r} is not UTF-8 at byte {error.start}")
        language = programming_language(name, text)
        if language is None:
            return Skipped("not_code")
        if options.languages and language not in options.languages:
            return Skipped("language")
        if len(content) > options.max_file_bytes:
            return Skipped("large")
        if not text.strip():
            return Skipped("empty")
        license_name = license_of(text[:_HEAD]) or project_license or self.config.license
        if options.licenses and license_name not in options.licenses:
            return Skipped("license")
        if reason := unwanted(name, text, options):
            return Skipped(reason)
        return {
            self.text_key: text,
            "path": name,
            "programming_language": language,
            "license": license_name,
        }
