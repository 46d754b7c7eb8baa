#!/usr/bin/env bash
# FILE.cu through the preprocessor and translate.py: translate.sh COMPILER PYTHON SOURCE OUTPUT DEPENDENCIES flag ...
set -euo pipefail
compiler=$1 python=$2 source=$3 output=$4 dependencies=$5
shift 5
here=$(dirname "${BASH_SOURCE[0]}")
"$compiler" -E -x c++ -std=c++20 -include "$here/cuda.h" -MD -MF "$dependencies" -MT "$output" "$@" "$source" |
  "$python" "$here/translate.py" >"$output.new"
mv "$output.new" "$output"
