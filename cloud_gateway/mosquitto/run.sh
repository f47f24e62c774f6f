#!/bin/sh
# Mosquitto in a container next to the gateway's: starts it when the gateway has written its files into the folder that
# both mount, and lets it read them again (SIGHUP) within a second of a change. `run.sh FOLDER`.
set -eu
folder=${1:-/mosquitto/config}

state() {
  cksum "$folder/acl" "$folder/ca.pem" "$folder/crl.pem" "$folder/broker.pem" 2>/dev/null || true
}

until [ -s "$folder/mosquitto.conf" ]; do sleep 1; done
seen=$(state)
"${MOSQUITTO:-mosquitto}" -c "$folder/mosquitto.conf" &
broker=$!
trap 'kill -TERM "$broker"; wait "$broker"; exit 0' TERM INT
while kill -0 "$broker" 2>/dev/null; do
  sleep 1 &
  wait $! # a signal ends this wait, but not a sleep in the foreground
  now=$(state)
  if [ "$now" != "$seen" ]; then
    seen=$now
    kill -HUP "$broker"
  fi
done
wait "$broker"
