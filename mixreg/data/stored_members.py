"""Members of a zip archive that are stored as they are, as `np.savez` stores arrays: read straight into their place.

`zipfile` hands out bytes, which an array then copies; here the file is read into the array itself, and the checksum is
taken where it lies. As there, what does not agree with its checksum is an error where the member ends.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Of the header before a member: where the lengths of its name and of its further fields are (APPNOTE.TXT, 4.3.7).
_HEADER, _LENGTHS = 30, 26


@contextmanager
def opened(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[Any]:
    """A member of the archive at `path`, to be read from its beginning; compressed ones are unpacked as they come."""
    with archive.open(name) as member:
        # That it opens says that its header is whole and nothing is encrypted.
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            yield member
            return
        with path.open("rb", buffering=0) as file:
            file.seek(info.header_offset)
            lengths = struct.unpack("<2H", file.read(_HEADER)[_LENGTHS:])
            file.seek(sum(lengths), io.SEEK_CUR)
            yield _StoredMember(file, info)


class _StoredMember(io.RawIOBase):
    """The bytes of one member, from where the file is."""

    def __init__(self, file: io.FileIO, info: zipfile.ZipInfo) -> None:
        self._file, self._info, self._left, self._checksum = file, info, info.file_size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As many bytes as the buffer takes and the file gives at once."""
        place = memoryview(buffer).cast("B")[: self._left]
        count = self._file.readinto(place)
        self._checksum = zlib.crc32(place[:count], self._checksum)
        self._left -= count
        if self._left == 0 and self._checksum != self._info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {self._info.filename!r}")
        return count
