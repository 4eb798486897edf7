"""The kind node image, made from Debian packages and Go programs where kindest/node cannot be pulled.

kind's own image files are taken from its Go module at build time. What differs from them, and why, is in `_adapt`.
Used by build.py and kind.py. Needs root (debootstrap, chroot).
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import cache, debian
from tests.cluster.archive import write_image
from tests.cluster.processes import Processes
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import NODE_TOOLS, SOURCES, module_dir, tool, tool_key
from tests.cluster.versions import COREDNS_TAG, ETCD_TAG, KUBERNETES, PAUSE_TAGS

_SYSTEM = (
    "systemd",
    "dbus",
    "conntrack",
    "iptables",
    "nftables",
    "iproute2",
    "ethtool",
    "kmod",
    "util-linux",
    "mount",
    "ebtables",
    "socat",
)
_RUNTIME = ("containerd", "runc", "containernetworking-plugins", "libseccomp2")
_COMMANDS = ("pigz", "e2fsprogs", "ca-certificates", "curl", "jq", "procps")
PACKAGES = (*_SYSTEM, *_RUNTIME, *_COMMANDS)
_FILES = Path(__file__).parent / "node"
_REGISTRY = "registry.k8s.io"


def key() -> str:
    """Content key of the image: programs, packages, files and this module."""
    programs = [tool_key(name) for name in NODE_TOOLS]
    return cache.content_key(*PACKAGES, *programs, SOURCES / "kind" / "go.mod", _FILES, Path(__file__), Path(debian.__file__))


def reference() -> str:
    """The image's name in an engine."""
    return f"local/node:{KUBERNETES}-{key()}"


def base_tree() -> Path:
    """The Debian part of it."""
    return debian.tree("node", PACKAGES)


def node_image() -> Path:
    """The image's file system as a tar file for `docker import`, made when it isn't in the cache."""
    return cache.artefact("node-image", key(), _build) / "rootfs.tar"


def _build(folder: Path) -> None:
    root = folder / "root"
    folder.mkdir()
    run("cp", "-a", "--reflink=auto", base_tree(), root)
    _kind_files(root)
    _adapt(root)
    _programs(root)
    archives = folder / "images"
    archives.mkdir()
    _preload(root, list(_control_plane_images(root, archives)))
    run("tar", "-C", root, "-cf", folder / "rootfs.tar", ".")
    cache.remove(root)
    cache.remove(archives)


def _kind_files(root: Path) -> None:
    """What kind's base Dockerfile does: its files, its services, its CRI base specification."""
    files = module_dir("kind", "sigs.k8s.io/kind") / "images" / "base" / "files"
    run("cp", "-r", "--no-preserve=mode", f"{files}/.", f"{root}/")
    for folder in ("usr/local/bin", "kind/bin"):
        for program in (root / folder).iterdir():
            program.chmod(0o755)
    wants = "lib/systemd/system"
    (root / wants / "sysinit.target.wants" / "systemd-tmpfiles-setup.service").unlink(missing_ok=True)
    for pattern in (
        f"{wants}/multi-user.target.wants/*",
        "etc/systemd/system/*.wants/*",
        f"{wants}/local-fs.target.wants/*",
        f"{wants}/sockets.target.wants/*udev*",
        f"{wants}/sockets.target.wants/*initctl*",
        f"{wants}/basic.target.wants/*",
    ):
        for unit in root.glob(pattern):
            unit.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as conf:
        conf.write("ReadKMsg=no\n")
    init = root / "sbin/init"
    if not init.is_symlink():
        init.symlink_to("/usr/lib/systemd/systemd")
    run("chroot", root, "systemctl", "enable", "kubelet.service", "containerd.service", "undo-mount-hacks.service")
    run("chroot", root, "systemctl", "mask", "systemd-binfmt.service")
    spec = json.loads(run("chroot", root, "ctr", "oci", "spec"))
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append({"path": "/kind/bin/mount-product-files.sh"})
    spec["process"].pop("rlimits", None)
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(spec))


def _adapt(root: Path) -> None:
    """Where Debian's packages and a bare machine differ from kind's own base image."""
    for program in ("containerd", "ctr", "containerd-shim-runc-v2"):  # kind's unit starts /usr/local/bin/containerd
        _link(root / "usr/local/bin" / program, f"/usr/bin/{program}")
    _link(root / "usr/local/sbin/runc", "/usr/sbin/runc")
    for folder in ("opt/cni/bin", "etc/cni/net.d", "etc/kubernetes/manifests", "kind/manifests"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for plugin in (root / "usr/lib/cni").iterdir():
        _link(root / "opt/cni/bin" / plugin.name, f"/usr/lib/cni/{plugin.name}")
    for sysctl in ("50-pid-max.conf", "99-protect-links.conf"):  # they would write settings of the whole host
        (root / "usr/lib/sysctl.d" / sysctl).unlink(missing_ok=True)
    config = root / "etc/containerd/config.toml"
    # Without CAP_SYS_RESOURCE runc may not lower oom_score_adj, which static pods ask for.
    text = re.sub(r"restrict_oom_score_adj = false", "restrict_oom_score_adj = true", config.read_text())
    config.write_text(text + (_FILES / "containerd-cni.toml").read_text())
    shutil.copy(_FILES / "cni.template.json", root / "etc/containerd/cni.template")
    # kindnetd and the local path provisioner exist only as images: routes by podroutes, no dynamic volumes.
    shutil.copy(_FILES / "podroutes.yaml", root / "kind/manifests/default-cni.yaml")
    shutil.copy(_FILES / "storage.yaml", root / "kind/manifests/default-storage.yaml")
    (root / "kind/version").write_text(KUBERNETES)


def _programs(root: Path) -> None:
    for name in ("kubeadm", "kubectl", "kubelet"):
        shutil.copy(tool(name), root / "usr/bin" / name)
    shutil.copy(tool("crictl"), root / "usr/local/bin/crictl")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _control_plane_images(root: Path, out: Path) -> Iterator[Path]:
    def image(name: str, tag: str, files: dict[str, Path | str], entrypoint: tuple[str, ...] = ()) -> Path:
        archive = out / f"{name.replace('/', '-')}-{tag}.tar"
        write_image(archive, f"{_REGISTRY}/{name}:{tag}", files, entrypoint)
        return archive

    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        yield image(name, KUBERNETES, {f"/usr/local/bin/{name}": tool(name)})
    yield image("etcd", ETCD_TAG, {"/usr/local/bin/etcd": tool("etcd")})
    yield image("coredns/coredns", COREDNS_TAG, {"/coredns": tool("coredns")}, ("/coredns",))
    for tag in PAUSE_TAGS:
        yield image("pause", tag, {"/pause": tool("pause")}, ("/pause",))
    yield image("podroutes", "1", {"/podroutes": tool("podroutes")}, ("/podroutes",))
    yield image("kube-proxy", KUBERNETES, {"/usr/local/bin/kube-proxy": tool("kube-proxy"), **_packet_filter(root)})


def _packet_filter(root: Path) -> dict[str, Path | str]:
    """iptables (its nft form, which the node's entry point chooses too) and nft, with all their libraries and modules."""
    programs = ["/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi", "/usr/sbin/nft"]
    modules = [f"/{path.relative_to(root)}" for path in root.glob("usr/lib/*-linux-gnu/xtables/*.so")]
    linked = run("chroot", root, "sh", "-c", f"ldd {' '.join(programs + modules)} || true")  # some modules alone lack one
    libraries = sorted(set(re.findall(r"(/\S+\.so\S*) ?\(0x", linked)))
    files: dict[str, Path | str] = {}
    for path in [*programs, *modules, *libraries]:
        files[path] = root / run("chroot", root, "readlink", "-f", path).strip().lstrip("/")
    for command in ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"):
        files[f"/usr/sbin/{command}"] = "xtables-nft-multi"
    return files


def _preload(root: Path, archives: list[Path]) -> None:
    """Put the images into the tree's own containerd store, as kind's importer does, but with no container around it."""
    work = Processes(cache.runs() / "preload")
    work.stop_all()  # what a killed build left
    socket = work.folder / "containerd.sock"
    config = work.folder / "config.toml"
    config.write_text(
        f'version = 2\nroot = "{root}/var/lib/containerd"\nstate = "{work.folder}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
    )
    debian.install_missing(["containerd", "ctr"])
    work.start("containerd", ["containerd", "-c", config])
    try:
        wait_for("containerd", lambda: socket.exists() and _ctr_answers(socket), timeout=30)
        for archive in archives:
            pinned = "--label=io.cri-containerd.pinned=pinned"
            run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", pinned, "--all-platforms", "--no-unpack", "--digests", archive)
    finally:
        work.stop_all()
        cache.remove(work.folder)


def _ctr_answers(socket: Path) -> bool:
    try:
        run("ctr", "-a", socket, "version")
    except Exception:  # noqa: BLE001 - any failure means: not yet
        return False
    return True
