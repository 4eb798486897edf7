"""Container images written as archive files, without any engine: one layer, its configuration and a manifest.

Used for what a Dockerfile would only wrap: the control plane's static programs and the fake device plugin.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)

_FOLDERS = {"dev": 0o755, "etc": 0o755, "proc": 0o755, "run": 0o755, "sys": 0o755, "tmp": 0o1777, "var": 0o755}


def write_image(out: Path, name: str, files: Mapping[str, Path | str], entrypoint: Sequence[str] = ()) -> None:
    """Write a docker archive that `docker load`, `ctr images import` and `kind load image-archive` read.

    Args:
        out: The archive file.
        name: Repository and tag.
        files: Path in the image → file to copy (a Path) or symbolic link to make (a str).
        entrypoint: The image's entry point; empty when the pod gives a command.
    """
    layer = _layer(files)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    config = json.dumps(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "created": "2020-01-01T00:00:00Z",  # fixed: the same files give the same image
            "config": {"Entrypoint": list(entrypoint) or None, "Env": [path]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(out, "w") as archive:
        for member, data in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(archive, member, data, 0o644)


def _layer(files: Mapping[str, Path | str]) -> bytes:
    buffer = io.BytesIO()
    parents = {str(parent) for target in files for parent in PurePosixPath(target.lstrip("/")).parents} - {"."}
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in sorted(_FOLDERS.keys() | parents):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, _FOLDERS.get(folder, 0o755)
            layer.addfile(info)
        for target, source in files.items():
            if isinstance(source, Path):
                _add(layer, target.lstrip("/"), source.read_bytes(), 0o755)
            else:
                info = tarfile.TarInfo(target.lstrip("/"))
                info.type, info.linkname = tarfile.SYMTYPE, source
                layer.addfile(info)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    archive.addfile(info, io.BytesIO(data))
