#!/usr/bin/env bash
# Runs uv so that it finds a CPU build of torch: uv.sh UV_BINARY pip {compile|sync} ...
#
# uv reads neither pip's variables nor pip.conf. Where pip is told of a folder of wheels that has a torch, uv is told of
# the same folder; elsewhere --torch-backend=cpu makes uv take torch from the PyTorch project's own CPU index.
set -euo pipefail

uv=$1
shift

# `pip config list` shows pip.conf and PIP_FIND_LINKS alike, one `section.find-links='a b'` a line, newlines as \n.
links=$("$(dirname "$uv")/python" -m pip config list | sed -n "s/^[^=]*find-links='\(.*\)'\$/\1/p" | sed 's/\\n/ /g')
links=$(tr -s ' \n' '\n' <<<"$links" | sed '/^$/d' | sort -u)
[ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$(paste -sd, - <<<"$links")}"

torch=--torch-backend=cpu
folders=${UV_FIND_LINKS:-}
for folder in ${folders//,/ }; do
  if compgen -G "${folder#file://}/torch-*" >/dev/null; then torch=; fi
done

exec "$uv" "$@" $torch
