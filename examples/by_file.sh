#!/bin/sh
# Three parties train one model by exchanging files, with masked sums. No network is used between them.
#
#     pip install -c constraints.txt '.[masked]'
#     sh examples/by_file.sh [FOLDER]
set -eu
out=${1:-by-file}  # a new folder for all files of this example
mkdir "$out"

# Data and credentials; each party gets its own folder of both.
fedunseen data deal digit-pairs --set partition.clients=3 --parties north,south,west --out "$out/data"
fedunseen certs --parties north,south,west --out "$out/credentials"

# The coordinator writes a plan, each party answers it, and the coordinator adds up.
fedunseen offline plan digit-pairs-gaussian --credentials "$out/credentials/coordinator" --parties north,south,west \
    --out "$out/plan.fedunseen"
for party in north south west; do
    fedunseen offline answer "$out/plan.fedunseen" --data "$out/data/$party" --credentials "$out/credentials/$party" \
        --out "$out/$party.fedunseen"
done
fedunseen offline merge "$out/plan.fedunseen" "$out/north.fedunseen" "$out/south.fedunseen" "$out/west.fedunseen" \
    --out "$out/run"
fedunseen predict "$out/run" "$(dirname "$0")/digit-pairs/47.png" --among unseen --top 3
