#!/usr/bin/env bash
# Runs all fuzzers, or those that are named, for so many hours, each for its share: tools/fuzz.sh HOURS [NAME...]. What
# they have found to be worth trying stays in build/fuzz/corpus, where the next run begins; a finding is written to
# build/fuzz/findings, and it ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "" | -h | --help) sed -n '2,4s/^# //p' "$0" && exit 0 ;;
esac
if ! [[ $1 =~ ^[0-9]+([.][0-9]+)?$ ]]; then
  echo "fuzz: $1 hours; expected a number, as in tools/fuzz.sh 4 or tools/fuzz.sh 0.5 fuzz_frame" >&2
  exit 2
fi
hours=$1
shift
tools/setup.sh
tools/build.sh fuzz "$@"
[ $# -gt 0 ] || set -- $(cd build/fuzz/bin && ls -d fuzz_*)
seconds=$(awk -v hours="$hours" -v count=$# -v cores="$(nproc)" 'BEGIN { printf "%d", hours * 3600 * cores / count }')
mkdir -p build/fuzz/findings

fuzz_one() {
  mkdir -p "build/fuzz/corpus/$1"
  local log="build/fuzz/findings/$1.log"
  if ! "build/fuzz/bin/$1" -max_total_time="$2" -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/findings/$1-" "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "fuzz: $1 has found something: build/fuzz/bin/$1 build/fuzz/findings/$1-... repeats it" >&2
    return 1
  fi
  echo "fuzz: $1: $(grep -o 'number_of_executed_units: [0-9]*' "$log")"
}
export -f fuzz_one
echo "fuzz: $# fuzzers, $seconds s each, $(nproc) at a time"
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {} "$1"' _ "$seconds" || exit 1
