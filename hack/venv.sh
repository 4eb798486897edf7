#!/usr/bin/env bash
# Makes the virtual environment and puts uv into it: hack/venv.sh PYTHON DIR
set -euo pipefail
python=$1 dir=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Python 3.11 or newer is needed; found ${python:-none}. On Debian 12: apt-get install python3 python3-venv" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv"
    apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
  else
    echo "The venv module is missing. Debian: apt-get install python3-venv" >&2
    exit 1
  fi
fi
echo "making the virtual environment $dir"
"$python" -m venv "$dir"
"$dir/bin/python" -m pip install -q --disable-pip-version-check "uv>=0.9"
