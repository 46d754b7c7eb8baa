#!/usr/bin/env bash
# Fuzzes the file parsers: tests/fuzz/run.sh [seconds] [target ...], each target for so long; the targets are safetensors
# and picture, both unless told. Exits non-zero on a finding, which is left in $POM_FUZZ_DIR (out/fuzz) together with the
# growing corpus. Needs clang++ with libFuzzer, for pictures libpng and libjpeg; no torch.
set -euo pipefail

seconds=${1:-60}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors picture)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=${POM_FUZZ_DIR:-$root/out/fuzz}
compiler=${CLANGXX:-clang++}

fuzz() { # fuzz target "source of pom/io ..." "library ..." seed_folder ...
  local target=$1 sources=() libraries=()
  read -ra sources <<<"$2"
  read -ra libraries <<<"$3"
  mkdir -p "$work/corpus/$target" "$work/findings"
  "$compiler" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    -I"$root" "$root/tests/fuzz/${target}_fuzz.cpp" "${sources[@]/#/$root/pom/io/}" "${libraries[@]}" \
    -o "$work/${target}_fuzz"
  "$work/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
    -verbosity=0 -print_final_stats=1 -dict="$root/tests/fuzz/$target.dict" -artifact_prefix="$work/findings/" \
    "$work/corpus/$target" "${@:4}"
}

for target in "${targets[@]}"; do
  case $target in
    safetensors)
      fuzz safetensors "../base/failpoint.cpp atomic_file.cpp json_header.cpp safetensors.cpp safetensors_error.cpp \
        safetensors_header.cpp safetensors_write.cpp" "" "$root/tests/hostile/safetensors" "$root/tests/golden/safetensors" ;;
    picture)
      fuzz picture "../base/failpoint.cpp atomic_file.cpp exif.cpp image.cpp jpeg.cpp json_header.cpp picture.cpp png.cpp \
        png_text.cpp read_file.cpp safetensors_error.cpp" "-lpng -ljpeg -lz" "$root/tests/golden/pictures" ;;
    *)
      echo "tests/fuzz/run.sh: target: expected safetensors or picture, got $target" >&2
      exit 2 ;;
  esac
done
