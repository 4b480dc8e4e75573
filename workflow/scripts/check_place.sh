# Can the pipeline be built in this folder? Tried by make before anything is created: sh check_place.sh ENVIRONMENT TARGET [git]
# Snakemake calls the interpreter of the environment without quotes (snakemake/snakemake#2645) and fills in braces.

fail() {
    echo "error: $1" >&2
    echo "  where: $2" >&2
    echo "  next:  $3" >&2
    exit 1
}

case "$PWD" in *[:{}]*)
    fail "the path of this folder has a colon or a brace, which Python's or Snakemake's own settings cannot hold" "$PWD" \
        "rename the folder, or clone to another path" ;;
esac
case "$1" in *[[:space:]:\"\'\$\&\(\)\*\;\<\>?\`\{\|\}\\]*)
    fail "Snakemake cannot call Python in a path with spaces, quotes or the like" "$1" \
        "make $2 VENV=/a/path/without/spaces, or clone to such a path" ;;
esac
[ -w . ] || fail "you may not write to this folder" "$PWD" "clone to a folder of yours, or ask for write permission"
[ "$3" = git ] || exit 0

command -v git >/dev/null || fail "git is not installed, and DVC needs it" "$PWD" "apt-get install git"
if ! said=$(LC_ALL=C git rev-parse --git-dir 2>&1); then
    case "$said" in *"not a git repository"*)
        fail "this folder is no git repository (a downloaded archive is none), and make and DVC need one" "$PWD" \
            "git init && git add -A && git commit -m 'as downloaded'" ;;
    esac
    fail "git cannot read this folder: $said" "$PWD" "git config --global --add safe.directory '$PWD'"
fi
git rev-parse --quiet --verify HEAD >/dev/null || fail "this git repository has no commit yet, and DVC needs one" "$PWD" \
    "git add -A && git commit -m 'as downloaded'"
