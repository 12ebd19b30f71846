#!/bin/sh
# Installs trunkline for this user: the archive for this machine is downloaded, compared with its
# SHA-256 sum, and unpacked into ~/.local/bin.
#
#   sh install.sh [--version X.Y.Z] [--to DIRECTORY]
#
# INSTALL_FROM is the address of the directory with the archives and SHA256SUMS.
set -eu

releases=${INSTALL_FROM:-@RELEASES@}
version=@VERSION@
to=${HOME:?}/.local/bin

fail() { echo "install.sh: $*" >&2; exit 1; }

main() {
  while [ $# -gt 0 ]; do
    case $1 in
      --version) version=${2:?--version needs a version}; shift 2 ;;
      --to) to=${2:?--to needs a directory}; shift 2 ;;
      *) fail "unknown option $1 (known: --version X.Y.Z, --to DIRECTORY)" ;;
    esac
  done
  case $releases in *://*) ;; *) fail "INSTALL_FROM must be an address" ;; esac
  [ "$(uname -s)" = Linux ] || fail "there are programs for Linux only; build from source instead"
  case $(uname -m) in
    x86_64 | amd64) target=x86_64-unknown-linux-musl ;;
    aarch64 | arm64) target=aarch64-unknown-linux-musl ;;
    *) fail "there is no program for $(uname -m); build from source instead" ;;
  esac
  name=trunkline-$version-$target
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for file in SHA256SUMS "$name.tar.gz"; do
    download "$releases/$file" "$work/$file" || fail "cannot download $releases/$file"
  done
  # The name must be in the list: an empty list would otherwise be a match.
  grep "  $name.tar.gz\$" "$work/SHA256SUMS" >"$work/sum" || fail "SHA256SUMS lacks $name.tar.gz"
  (cd "$work" && sha256sum -c sum >/dev/null 2>&1) ||
    fail "$name.tar.gz is not the file that SHA256SUMS names; nothing was installed"
  tar -xzf "$work/$name.tar.gz" -C "$work"
  mkdir -p "$to"
  # A program that runs cannot be written to, but can be replaced.
  install -m 755 "$work/$name/trunkline" "$to/.trunkline.new"
  mv "$to/.trunkline.new" "$to/trunkline"
  echo "installed $("$to/trunkline" --version) as $to/trunkline"
  case :$PATH: in *":$to:"*) ;; *) echo "add $to to your PATH" ;; esac
}

download() {
  if command -v curl >/dev/null; then
    curl -fsSL --retry 3 -o "$2" "$1"
  else
    wget -q -O "$2" "$1"
  fi
}

# Last, so that a script that was cut off does nothing.
main "$@"
