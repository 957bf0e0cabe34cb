#!/bin/sh
# Runs in the empty workspace; the program comes from the plugin.
set -eu
cp "$(dirname "$0")/../../benchmarks/corpus/cases/survey_topics.py" .
