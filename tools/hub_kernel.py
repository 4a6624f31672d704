"""Write sink_attn as a kernel repository, in the form that Hugging Face's kernels loads.

The folder holds build.toml and torch-ext/ for kernel-builder, and build/torch-cuda/, which
kernel-builder would make from them and which kernels.get_kernel and get_local_kernel load.
Nothing is uploaded.  https://huggingface.co/docs/kernels/kernel-requirements
"""

import argparse
import base64
import hashlib
import json
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, KERNEL = "sink_attn", "sink-attn"
# The compute capabilities that tools.sink_attn_resources compiles for.
CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def write(folder: Path, organisation: str) -> Path:
    """Make folder a kernel repository whose hub name is organisation/sink-attn.

    Returns:
        The folder with the built kernel, build/torch-cuda in it.

    Raises:
        ValueError: folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"want a new or an empty folder; got {folder}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version, licence = int(project["version"].partition(".")[0]), project["license"]["text"]
    build = folder / "build" / "torch-cuda"
    for target in (folder / "torch-ext" / PACKAGE, build):
        shutil.copytree(ROOT / PACKAGE, target, ignore=lambda _, names: [
            name for name in names if not name.endswith(".py")])
    for name, source in (("LICENSE", "LICENSE"), ("README.md", f"{PACKAGE}/README.md")):
        shutil.copyfile(ROOT / source, folder / name)
    files = {path.name: hashlib.sha256(path.read_bytes()).digest()
             for path in sorted(build.iterdir())}
    unique = hashlib.sha256(b"".join(files.values())).hexdigest()[:7]
    (build / "metadata.json").write_text(json.dumps({
        # The name that the package is imported under, and the namespace of its operators.
        "id": f"_{PACKAGE}_cuda_{unique}", "name": KERNEL, "version": version, "license": licence,
        "python-depends": [], "backend": {"type": "cuda", "archs": CAPABILITIES},
        "digest": {"algorithm": "sha256", "files": {
            name: base64.b64encode(digest).decode() for name, digest in files.items()}},
    }, indent=2) + "\n", encoding="utf-8")
    (folder / "build.toml").write_text(f'''[general]
name = "{KERNEL}"
version = {version}
edition = 5
license = "{licence}"
backends = ["cuda"]

[general.hub]
repo-id = "{organisation}/{KERNEL}"

[torch-noarch]
cuda-capabilities = {json.dumps(CAPABILITIES)}
''', encoding="utf-8")
    return build


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hub_kernel", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new or an empty folder")
    parser.add_argument("organisation", nargs="?", default="ORGANISATION",
                        help="who publishes it on the hub")
    options = parser.parse_args(argv)
    try:
        build = write(options.folder, options.organisation)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{build}\nTry it: kernels.get_local_kernel(Path({str(build.parent)!r}))")
    return 0


if __name__ == "__main__":
    sys.exit(main())
