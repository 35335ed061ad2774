#!/usr/bin/env bash
# What action.yml runs: measures where there is no profile yet, then compares. Exits as `lisse compare` does: 5 where a
# condition holds. Inputs are variables of the environment, never part of a command line that a shell reads.
set -euo pipefail
lisse=("${GATE_PYTHON:-python}" -m lisse)
profile="${GATE_PROFILE:-}"
if [ -z "$profile" ]; then
  : "${GATE_MODEL:?profile or model must be given}" "${GATE_DATA:?data must be given}" "${GATE_INSTRUMENTS:?instruments must be given}"
  profile="$(mktemp -d)/gate.profile"
  read -ra options <<< "${GATE_OPTIONS:-}"
  "${lisse[@]}" measure "$GATE_INSTRUMENTS" "$GATE_MODEL" --data "$GATE_DATA" --out "$profile" "${options[@]}" > /dev/null
fi
conditions=()
while IFS= read -r line; do
  [ -z "${line//[[:space:]]/}" ] || conditions+=(--fail-if "$line")
done <<< "${GATE_FAIL_IF:?conditions must be given}"
"${lisse[@]}" compare "$GATE_AGAINST" "$profile" "${conditions[@]}"
