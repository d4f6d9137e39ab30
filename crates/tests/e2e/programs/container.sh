#!/bin/sh
# container.sh NAME BRIDGE ADDRESS/PREFIX GATEWAY COMMAND [ARGUMENT...]
#
# Runs a command in a container, as `docker run` does: it has a network of its own, which is joined
# to BRIDGE, its own process numbers and names of hosts, and a /run of its own, in which only
# /run/weft of the host is mounted (`docker run --volume /run/weft:/run/weft`).
set -eu
name=$1 bridge=$2 address=$3 gateway=$4
shift 4

ip netns add "$name"
ip link add "v-$name" type veth peer name eth0 netns "$name"
ip link set "v-$name" master "$bridge" up
ip -n "$name" link set lo up
ip -n "$name" link set eth0 up
ip -n "$name" address add "$address" dev eth0
ip -n "$name" route add default via "$gateway"

exec ip netns exec "$name" \
    unshare --mount --pid --fork --kill-child --mount-proc --propagation private -- sh -euc '
        mount --bind /run/weft /mnt
        mount -t tmpfs tmpfs /run
        mkdir /run/weft
        mount --move /mnt /run/weft
        printf "127.0.0.1 localhost\n%s %s\n" "${2%/*}" "$1" >/run/hosts
        mount --bind /run/hosts /etc/hosts
        shift 2
        exec "$@"' container "$name" "$address" "$@"
