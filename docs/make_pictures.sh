#!/usr/bin/env bash
# Makes docs/pictures anew: runs the shell commands of docs/guide.md with the program in an empty folder, and takes the
# pictures that the page shows. The program is $POM, else build/release/pom.
#
#   docs/make_pictures.sh [FOLDER]     default: docs/pictures
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
pom=$(realpath "${POM:-$root/build/release/pom}")
target=$(realpath -m "${1:-$root/docs/pictures}")
[[ -x $pom ]] || { echo "make_pictures: $pom: no such program; make program builds it, or \$POM says where it is" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$pom" "$work/bin/pom"
ln -s "$root/assets" "$root/recipes" "$work"

awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$root/docs/guide.md" > "$work/commands.sh"
(cd "$work" && PATH="$work/bin:$PATH" bash -euo pipefail commands.sh)

grep -oE '\(pictures/[^)]+\.png\)' "$root/docs/guide.md" | sort -u | tr -d '()' | while read -r picture; do
  name=${picture#pictures/}
  mkdir -p "$target/$(dirname "$name")"
  cp "$work/out/$name" "$target/$name"
done
echo "$(find "$target" -name '*.png' | wc -l) pictures, $(du -bc "$target"/ | tail -n 1 | cut -f 1) bytes in $target"
