#!/bin/sh
# Makes the keys of the stack that are missing, of 256 random bits each, and leaves those that are there as they are.
# /gateway is what the gateways see as /run/secrets, /postgres what PostgreSQL sees.
set -eu

key() { # key FILE
  [ -s "$1" ] && return
  od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1.new"
  # Whoever the volume is mounted for may read it; nobody else has it.
  chmod 0444 "$1.new"
  mv "$1.new" "$1"
}

key /gateway/session-key
key /gateway/hash-key
key /gateway/secrets-key
key /postgres/db-password
cmp -s /postgres/db-password /gateway/db-password || cp /postgres/db-password /gateway/db-password
