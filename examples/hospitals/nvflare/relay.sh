#!/bin/sh
# Keeps the relay running: a job that has ended, because a client was lost, is submitted again.
#     sh relay.sh KIT    KIT: the folder of the coordinator's startup kit
while sleep 5; do
    job=$(nvflare job submit -j "$(dirname "$0")/job" --startup-kit "$1" | grep -oE '[0-9a-f-]{36}') &&
        nvflare job wait "$job" --startup-kit "$1"
done
