#!/bin/sh
# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
# Epilog hook: tells the advisor that a job has left this node, so that nobody waits for the next poll.
# It never fails and never waits: the request runs in the background for 2 s at most.
# Install: copy it into the folder that Epilog= names, and put a token of role "ingester" into TOKEN_FILE.
URL="${RELIGHT_URL:-http://relight:8756}"
TOKEN_FILE="${RELIGHT_TOKEN_FILE:-/etc/relight/ingester.token}"
[ -r "$TOKEN_FILE" ] || exit 0
case "$SLURM_JOB_ID" in '' | *[!0-9]*) exit 0 ;; esac
NODE="${SLURMD_NODENAME:-$(hostname -s)}"
case "$NODE" in *[!A-Za-z0-9._-]*) exit 0 ;; esac
NOW="$(date -u +%Y-%m-%dT%H:%M:%SZ)"
BODY="{\"signals\":[{\"source\":\"epilog\",\"source_event_id\":\"$SLURM_JOB_ID-$NODE-${SLURM_RESTART_COUNT:-0}\",\
\"event_time\":\"$NOW\",\"node\":\"$NODE\",\"node_event\":{\"agent\":\"slurm-epilog\",\"check_name\":\"job_left\",\
\"is_fatal\":false,\"is_healthy\":true,\"processing_strategy\":\"STORE_ONLY\",\"message\":\"job $SLURM_JOB_ID left\"}}]}"
(
  umask 077
  printf 'header = "Authorization: Bearer %s"\n' "$(cat "$TOKEN_FILE")" |
    curl --silent --max-time 2 --output /dev/null --config - \
      --header 'Content-Type: application/json' --data "$BODY" "$URL/v1/signals"
) >/dev/null 2>&1 </dev/null &
exit 0
