#!/bin/sh
# Makes a fresh Debian machine ready: the packages of packages.txt by apt, and a virtual environment
# in .venv with the pinned packages of requirements/dev.txt. What is there already is left alone; a
# second run takes no time.
set -eu
cd "$(dirname "$0")/.."

say() {
    echo "bootstrap: $*"
}

die() {
    echo "bootstrap: $*" >&2
    exit 1
}

install_packages() {
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian system: these packages (or their like) are needed: $(tr '\n' ' ' <packages.txt)"
        return
    fi
    # "ii" alone says that it is installed: a removed package can leave an entry behind.
    # shellcheck disable=SC2046
    installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' $(cat packages.txt) 2>/dev/null |
        sed -n 's/^ii *//p')
    missing=$(echo "$installed" | grep -vxFf - packages.txt | tr '\n' ' ')
    if [ -z "$missing" ]; then
        return
    fi
    if [ "$(id -u)" -eq 0 ]; then
        sudo=""
    elif command -v sudo >/dev/null; then
        sudo="sudo"
    else
        die "these packages are missing, and there is neither root nor sudo to install them;" \
            "as root: apt-get install --no-install-recommends $missing"
    fi
    say "installing with apt: $missing"
    # $missing and $sudo are lists of words. Without a terminal of its own dpkg says what fails on
    # stderr, and the names of all that succeeds on stdout.
    # shellcheck disable=SC2086
    {
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 \
            --no-install-recommends $missing </dev/null >/dev/null
    }
}

# The first interpreter that can run the project: $PYTHON, python3, then the versioned names.
find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer is needed; python3 is $(python3 --version 2>&1 || true)." \
        "Set PYTHON=/path/to/python3.11 to choose another."
}

make_environment() {
    stamp=$(cksum <requirements/dev.txt)
    if [ "$(cat .venv/stamp 2>/dev/null)" = "$stamp" ] && [ -x .venv/bin/python ]; then
        return
    fi
    python=$(find_python)
    say "making .venv with $("$python" --version) and the packages of requirements/dev.txt" \
        "(PyTorch is large: this can take minutes)"
    "$python" -m venv .venv || die "$python can't make virtual environments (python3-venv missing?)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
    echo "$stamp" >.venv/stamp
}

install_packages
make_environment
