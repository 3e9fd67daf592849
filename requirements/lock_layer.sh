#!/usr/bin/env bash
# Resolves requirements/NAME.in to NAME.txt, which is installed on top of cpu.txt: lock_layer.sh UV_BINARY NAME [options]
#
# What cpu.txt has stays as it is, but for what NAME.in names with a version; only what is not there, or differs, is
# listed.
set -euo pipefail

uv=$1
name=$2
shift 2

cd "$(dirname "$0")/.."
list=requirements/$name
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^\([A-Za-z0-9._-]*\)[<=>~].*/^\1==/p' "$list.in" >"$work/differ"
sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' requirements/cpu.txt | grep -v -f "$work/differ" >"$work/stay"
bash requirements/uv.sh "$uv" pip compile "$list.in" --constraints "$work/stay" --overrides requirements/layer-overrides.txt \
  --generate-hashes $(sed 's/==.*//; s/^/--no-emit-package=/' "$work/stay") --python-version 3.11 --no-header --quiet "$@" -o "$list.txt"
# The list of what is left out is cut off.
sed '/^$/,$d' "$list.txt" >"$work/lock" && cp "$work/lock" "$list.txt"
