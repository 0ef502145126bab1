#!/bin/sh
# Make .venv from requirements.txt. Usage: tools/setup.sh PYTHON
# Without an NVIDIA driver, torch comes from PyTorch's CPU index when that answers within 5 s: the plain
# wheel for Linux is the CUDA build, about 3 GB.
set -eu
python=$1
if ! "$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then
    echo "error: $python is not a working Python 3.11; install one or name it: make test PYTHON=/path/to/python" >&2
    exit 1
fi
cpu_index=https://download.pytorch.org/whl/cpu
torch=$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' requirements.txt)
quiet=--quiet
if [ -t 1 ]; then quiet=; fi
install() { .venv/bin/python -m pip --disable-pip-version-check install $quiet "$@"; }
answers() { "$python" -c "import urllib.request as u; u.urlopen('$cpu_index/torch/', timeout=5)" 2>/dev/null; }

echo "==> 1/3 new environment in .venv ($("$python" --version))"
"$python" -m venv --clear .venv
if ! command -v nvidia-smi >/dev/null 2>&1 && answers; then
    echo "==> 2/3 $torch for the CPU, from $cpu_index"
    install "$torch" --index-url "$cpu_index"
else
    echo "==> 2/3 $torch from the default index"
    install "$torch"
fi
echo "==> 3/3 the rest of requirements.txt (a few minutes when everything must be downloaded)"
install --requirement requirements.txt
