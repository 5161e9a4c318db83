#!/bin/sh
# find-python.sh VERSION...   prints the first interpreter of these versions, in this order, that can make a venv.
for version in "$@"; do
  for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3 python3; do
    if "$python" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
      command -v "$python"
      exit 0
    fi
  done
done
echo "No Python of these versions on this machine can make a virtual environment: $*." >&2
for version in "$@"; do
  for python in "python$version" python3; do
    if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
      echo "$python lacks the module venv or ensurepip (Debian: apt-get install python3-venv)." >&2
      exit 1
    fi
  done
done
exit 1
