#!/usr/bin/env bash
# Fuzzes the file parsers: tests/fuzz/run.sh [seconds]. Exits non-zero on a finding, which is left in
# $POM_FUZZ_DIR (out/fuzz) together with the growing corpus. Needs clang++ with libFuzzer; no torch.
set -euo pipefail

seconds=${1:-60}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=${POM_FUZZ_DIR:-$root/out/fuzz}
compiler=${CLANGXX:-clang++}

mkdir -p "$work/corpus/safetensors" "$work/findings"
"$compiler" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -I"$root" "$root/tests/fuzz/safetensors_fuzz.cpp" "$root"/pom/io/{atomic_file,json_header}.cpp \
  "$root"/pom/io/safetensors{,_error,_header,_write}.cpp -o "$work/safetensors_fuzz"

"$work/safetensors_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
  -verbosity=0 -print_final_stats=1 -dict="$root/tests/fuzz/safetensors.dict" -artifact_prefix="$work/findings/" \
  "$work/corpus/safetensors" "$root/tests/hostile/safetensors" "$root/tests/golden/safetensors"
