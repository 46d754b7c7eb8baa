#!/usr/bin/env bash
# Installs a finished build into an empty folder, and builds and runs a program that knows nothing but
# find_package(pom): tests/outside/run.sh BUILD_DIR
set -euo pipefail

build=$(cd "${1:?usage: tests/outside/run.sh BUILD_DIR}" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
cp "$here/CMakeLists.txt" "$here/main.cpp" "$work" # away from the repository, whose headers must not help
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release
cmake --build "$work/build"

printed=$("$work/build/outside")
if [ "$printed" != "[2, 10, 16]" ]; then
  echo "tests/outside: expected the shape [2, 10, 16], got: $printed"
  exit 1
fi
echo "tests/outside: a program built with find_package(pom) printed $printed"
