"""Images written without an engine have the layout that engines read."""

import hashlib
import json
import tarfile
from pathlib import Path

from tests.cluster.archive import write_image


def test_an_archive_holds_one_layer_with_files_links_and_parents(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    out = tmp_path / "image.tar"
    write_image(out, "local/x:1", {"/usr/local/bin/x": program, "/usr/local/bin/y": "x"}, ("/usr/local/bin/x",))
    with tarfile.open(out) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type] # present, or the test fails here
        config = json.load(archive.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        layer = archive.extractfile("layer.tar")
        assert layer is not None
        data = layer.read()
    assert manifest[0]["RepoTags"] == ["local/x:1"]
    assert config["config"]["Entrypoint"] == ["/usr/local/bin/x"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}"]
    (tmp_path / "layer.tar").write_bytes(data)
    with tarfile.open(tmp_path / "layer.tar") as files:
        assert files.getmember("usr/local").isdir()
        assert files.getmember("tmp").mode == 0o1777
        assert files.getmember("usr/local/bin/x").mode == 0o755
        assert files.getmember("usr/local/bin/y").linkname == "x"


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"1")
    for name in ("a.tar", "b.tar"):
        write_image(tmp_path / name, "local/x:1", {"/x": program})
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
