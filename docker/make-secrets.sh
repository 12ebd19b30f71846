#!/bin/sh
# Makes the keys of the stack that are missing, of 256 random bits each, and leaves those that are there as they are.
# /gateway is what the gateways see as /run/secrets, /postgres what PostgreSQL sees, /valkey what Valkey does.
set -eu

key() { # key FILE
  [ -s "$1" ] && return
  od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1.new"
  # Whoever the volume is mounted for may read it; nobody else has it.
  chmod 0444 "$1.new"
  mv "$1.new" "$1"
}

copy() { # copy FROM TO: also over one that cannot be written to
  cmp -s "$1" "$2" && return
  cp "$1" "$2.new"
  chmod 0444 "$2.new"
  mv -f "$2.new" "$2"
}

key /gateway/session-key
key /gateway/hash-key
key /gateway/secrets-key
key /gateway/cache-password
key /postgres/db-password
copy /postgres/db-password /gateway/db-password
copy /gateway/cache-password /valkey/cache-password
