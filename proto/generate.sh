#!/bin/sh
# Regenerates the Python code of every .proto file here: proto/generate.sh [OUTPUT_FOLDER]
# Needs grpcio-tools (the "dev" extra) in the Python that PYTHON names, by default the project's virtual environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../pulsar_lifecycle/_pb}
python=${PYTHON:-$here/../.venv/bin/python}
exec "$python" -m grpc_tools.protoc -I "$here" --python_out="$out" --pyi_out="$out" "$here"/*.proto
