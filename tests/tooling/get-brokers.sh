#!/bin/sh
# get-brokers.sh SUITE...   (root, Debian) a chroot with each suite's rabbitmq-server, for the tests' private nodes.
# trixie has RabbitMQ 4.0, forky 4.3; about a minute and 500 MB each. No service is started, nothing stays mounted.
set -eu
place=${RMQ_BROKERS:-${XDG_CACHE_HOME:-$HOME/.cache}/django-rmq-retry/brokers}
sources=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null || true)
found=$(printf '%s\n' "$sources" | grep -v security | grep '/debian/*$' | head -n 1 || true)
mirror=${RMQ_MIRROR:-${found:-https://deb.debian.org/debian}}

if [ "$(id -u)" != 0 ]; then
  echo "make brokers: only root may make a chroot; anyone may use it (RMQ_TEST_CHROOTS=folder:folder)." >&2
  exit 1
fi
command -v debootstrap >/dev/null || { apt-get -qq update; apt-get -qq install --yes debootstrap; }

get() {
  root=$place/$suite building=$place/.building-$suite
  if ls -d "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-* 2>/dev/null; then return; fi
  rm -rf --one-file-system "$building"
  mkdir -p "$building"
  script=/usr/share/debootstrap/scripts/$suite
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # an old debootstrap does not know a new suite's name
  debootstrap --variant=minbase "$suite" "$building" "$mirror" "$script" >"$building.log" 2>&1
  printf '#!/bin/sh\nexit 101\n' >"$building/usr/sbin/policy-rc.d"
  chmod +x "$building/usr/sbin/policy-rc.d"
  cp /etc/hosts /etc/resolv.conf "$building/etc/"
  # the mounts live in a namespace of their own and end with it; a mirror of a testing suite may lag behind its expiry
  unshare --mount sh -euc '
    mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"
    export DEBIAN_FRONTEND=noninteractive
    chroot "$1" apt-get -qq -o Acquire::Check-Valid-Until=false update
    chroot "$1" apt-get -qq install --yes --no-install-recommends rabbitmq-server
    chroot "$1" apt-get clean
  ' sh "$building" >>"$building.log" 2>&1
  mkdir -p "$building/srv/node"
  mv "$building" "$root"
  rm "$building.log"
  ls -d "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-*
}

suite=
trap 'code=$?; [ "$code" = 0 ] || tail -n 20 "$place/.building-$suite.log" >&2; exit "$code"' EXIT
for suite in "$@"; do
  get
done
