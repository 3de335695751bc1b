#!/bin/sh
# Makes the kernels that a server needs, in $GRISTMILL_CACHE: bake.sh MODEL [OPTION of `gristmill serve`…]
#
# What a server compiles depends on its options (--ctx, --parallel, --kv, --threads): give those that it will be started with. Where a step is compiled when the
# first request asks for it (probabilities of prompts), a server without a compiler refuses that request.
set -eu
said=$(mktemp)
gristmill serve "$@" --port 0 2>"$said" &
server=$!
until grep -q '^chat: ' "$said"; do
    # It ends where it cannot be started, and has said why.
    kill -0 "$server" 2>/dev/null || { cat "$said" >&2; exit 1; }
    sleep 1
done
kill -TERM "$server"
wait "$server"
rm "$said"
chmod -R a+rX "$GRISTMILL_CACHE"
