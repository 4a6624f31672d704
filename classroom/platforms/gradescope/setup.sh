#!/usr/bin/env bash
# Gradescope runs this once, as root, while it builds the image.  Python 3.11 or newer is needed:
# Ubuntu 22.04 brings an older one, and a newer one as a package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

new_enough() { "$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
found=
for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if new_enough "$python"; then found=$python; break; fi
done
if [ -z "$found" ]; then
    apt-get update
    for found in python3.14 python3.13 python3.12 python3.11; do
        apt-get install -y --no-install-recommends "$found" "$found-venv" && break
    done
fi
"$found" -m venv .venv
.venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    --extra-index-url https://download.pytorch.org/whl/cpu \
    -c course/constraints.txt -r course/requirements.txt
.venv/bin/python -c 'import torch, triton, numpy'  # an image without them fails here, not later
.venv/bin/python -m compileall -q course
chmod -R go+rX .  # the files run as nobody, who has to read this Python
