#!/bin/sh
# Creates the stack's missing keys, 256 random bits each. Existing keys stay as they are.
# /gateway, /postgres and /valkey are the volumes that these services mount at /run/secrets.
set -eu

key() { # key FILE
  [ -s "$1" ] && return
  od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1.new"
  # Readable by all users: only the services that need the key mount its volume.
  chmod 0444 "$1.new"
  mv "$1.new" "$1"
}

copy() { # copy FROM TO: also replaces a read-only file
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
