"""Typed objects as JSON or YAML files; errors name the file, the entry and the field."""

from __future__ import annotations

import codecs
import os
import re
import tempfile
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from neuroshard_fast.errors import InputError

T = TypeVar("T")

YAML_SUFFIXES = (".yaml", ".yml")

# PyYAML raises almost anything where a value does not fit the tag written before it.
_UNSOUND_YAML = (ValueError, OverflowError, LookupError, AttributeError, TypeError)


def as_path(path: str | os.PathLike[str]) -> Path:
    """``path``; InputError where it is not one: of another type, empty, or with a NUL character."""
    try:
        checked = Path(path)
    except TypeError as error:
        raise InputError(f"a path is wanted, got {path!r}") from error
    if not os.fspath(path) or "\0" in str(checked):
        raise InputError(f"a path must not be empty or hold NUL characters, got {path!r}")
    return checked


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The contents of ``path``; InputError where it cannot be read, or is a device, which may never end."""
    file = as_path(path)
    try:
        if file.is_char_device() or file.is_block_device():
            raise InputError(f"{path}: cannot be read: it is a device, not a file")
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path``: a reader sees the old contents or the new ones, never a part.

    A link stays, and the file that it leads to is written. InputError where that cannot be.
    """
    target = output_file(path)
    try:
        descriptor, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def output_file(path: str | os.PathLike[str]) -> Path:
    """The file that writing to ``path`` makes or replaces, links followed.

    InputError where there is something other than a file, such as a folder or a device, or where
    its folder is missing or not writable. Call it before long work too, whose result would else be lost.
    """
    target = Path(os.path.realpath(as_path(path)))
    try:
        if not (target.parent.is_dir() and os.access(target.parent, os.W_OK)):
            raise InputError(f"{path}: cannot be written: no such folder, or not writable")
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: cannot be written: it is not a regular file")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return target


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def decode(data: bytes, type_: type[T], source: str, *, yaml: bool = False) -> T:
    """Decode JSON (or YAML) into ``type_``; ``source`` names the origin in errors.

    A byte order mark, with which some editors begin a file, is passed over.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        if yaml:
            if b"*" in data:
                _refuse_aliases(data, source)
            return msgspec.yaml.decode(data, type=type_)
        return msgspec.json.decode(data, type=type_)
    except InputError:
        raise
    except (msgspec.DecodeError, RecursionError, *_UNSOUND_YAML) as error:
        reason = _other_schema(data, type_, yaml=yaml) or _explain(error, data)
        raise InputError(f"{source}: {reason}") from error


def load(path: str | os.PathLike[str], type_: type[T]) -> T:
    """Read ``path`` as YAML when its name ends in .yaml or .yml, else as JSON, into ``type_``."""
    yaml = as_path(path).suffix.lower() in YAML_SUFFIXES
    return decode(read_bytes(path), type_, str(path), yaml=yaml)


def encode(value: Any) -> bytes:
    """``value`` as JSON."""
    return msgspec.json.encode(value, enc_hook=plain)


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as YAML or JSON, chosen by the name of ``path``, atomically."""
    if as_path(path).suffix.lower() in YAML_SUFFIXES:
        data = msgspec.yaml.encode(value, enc_hook=plain)
    else:
        data = msgspec.json.format(encode(value), indent=1) + b"\n"
    write_atomically(path, data)


def plain(number: object) -> int | float:
    """``number`` as one of Python's: what the checks take for a number may be one of numpy's.

    It is the ``enc_hook`` of msgspec for the types of this package.
    """
    if isinstance(number, Integral):
        return int(number)
    if isinstance(number, Real):
        return float(number)
    raise TypeError(f"{type(number).__name__} cannot be written to a file")


def _refuse_aliases(data: bytes, source: str) -> None:
    """A few hundred bytes of aliases of aliases can stand for more objects than fit in memory."""
    import yaml

    try:
        for event in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    f"{source}: YAML aliases, such as *{event.anchor}, are not read: write them out"
                )
    except yaml.YAMLError as error:
        raise InputError(f"{source}: {_explain(error, data)}") from error


class _Schema(msgspec.Struct):
    """What files of this package begin with."""

    schema: str | None = None


def _other_schema(data: bytes, type_: type[Any], *, yaml: bool) -> str | None:
    """What ``data``, which is no ``type_``, says that it is instead; None where it does not say."""
    if "schema" not in getattr(type_, "__struct_fields__", ()):
        return None
    wanted = next(f.default for f in msgspec.structs.fields(type_) if f.name == "schema")
    decoder = msgspec.yaml if yaml else msgspec.json
    try:
        found = decoder.decode(data, type=_Schema).schema
    except (msgspec.DecodeError, RecursionError, *_UNSOUND_YAML):
        return None
    if found is None or found == wanted:
        return None
    return f"is a file of schema {found[:60]!r}; one of schema {wanted!r} is wanted here"


def _explain(error: Exception, data: bytes) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = " ".join(str(error).split())
    if at_byte := re.search(r"\(byte (\d+)\)$", text):
        line = data.count(b"\n", 0, int(at_byte[1])) + 1
        return f"line {line}: {text}"
    if " - at `$" in text:
        message, _, where = text.rpartition(" - at `$")
        entry = where.rstrip("`").lstrip(".")
        return f"{entry}: {message}" if entry else message
    return text
