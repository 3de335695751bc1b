#!/bin/sh
# Installs Gristmill @VERSION@ below $PREFIX (default: ~/.local), as bin/gristmill and lib/gristmill:
#
#   sh install.sh                        downloads the archive with curl or wget
#   PREFIX=/usr/local sh install.sh      for all users, as root
#
# Archives that lie beside this script, with SHA256SUMS, are installed without a download. Needs
# sh, tar, gzip and sha256sum, which every distribution has.
set -eu

version='@VERSION@'
url="${GRISTMILL_URL:-@URL@}"

die() {
    printf 'install: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# Name of the machine's Rust target.
target() {
    if [ "$(uname -s)" != Linux ]; then
        die "there is no archive for $(uname -s)" "build from source: cargo install --locked --path cli"
    fi
    case "$(uname -m)" in
        x86_64 | amd64) arch=x86_64 ;;
        aarch64 | arm64) arch=aarch64 ;;
        *) die "there is no archive for $(uname -m)" "build from source: cargo install --locked --path cli" ;;
    esac
    echo "$arch-unknown-linux-$(libc)"
}

# A glibc system may have musl's loader too, and Alpine a stand-in of glibc's.
libc() {
    if getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
        echo gnu
    elif ls /lib/ld-musl-*.so.1 >/dev/null 2>&1; then
        echo musl
    else
        echo gnu
    fi
}

# fetch FILE: copies or downloads it to the current folder.
fetch() {
    if [ -f "$here/$1" ]; then
        cp "$here/$1" .
    elif [ -z "$url" ]; then
        die "$1 is not beside this script" "put it there, or set GRISTMILL_URL to the address of its folder"
    elif command -v curl >/dev/null; then
        curl --fail --silent --show-error --location --output "$1" "$url/$1"
    elif command -v wget >/dev/null; then
        wget -q -O "$1" "$url/$1"
    else
        die "there is neither curl nor wget" "install one, or put $1 and SHA256SUMS beside this script"
    fi || die "$url/$1 cannot be fetched" "check the connection, or set GRISTMILL_URL to another address"
}

here="$(cd "$(dirname "$0")" && pwd)"
prefix="${PREFIX:-${HOME:+$HOME/.local}}"
if [ -z "$prefix" ]; then
    die "there is no home directory" "set PREFIX to the folder to install to"
fi
name="gristmill-$version-$(target)"
mkdir -p "$prefix/bin" "$prefix/lib" || die "cannot write to $prefix" "set PREFIX to a folder of yours"
# On the same file system as the installation, so that files are moved into place.
work="$(mktemp -d "$prefix/lib/gristmill-install.XXXXXX")"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$work"
fetch SHA256SUMS
fetch "$name.tar.gz"
grep " [ *]$name.tar.gz\$" SHA256SUMS >sum || die "SHA256SUMS does not list $name.tar.gz" "fetch both from one release"
sha256sum -c sum >/dev/null || die "$name.tar.gz is not the file of SHA256SUMS" "fetch it again"
tar -xzf "$name.tar.gz"
rm -rf "$prefix/lib/gristmill"
mv "$name/lib/gristmill" "$prefix/lib/gristmill"
mv -f "$name/bin/gristmill" "$prefix/bin/gristmill"
echo "installed $prefix/bin/gristmill $version"
case ":${PATH:-}:" in
    *":$prefix/bin:"*) ;;
    *) echo "note: $prefix/bin is not in PATH" ;;
esac
