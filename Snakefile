"""The whole pipeline in one graph: `snakemake --cores 2` builds everything, `snakemake --report` shows it.

Each rule is one command, `edgeplan stage NAME`, which `dvc repro` runs, too: it decides by content which are out of date.
"""


include: "workflow/rules/common.smk"


# Where DVC finds everything current, nothing is built again, whatever the time stamps say.
CURRENT = tracked_as_current()
# The command `edgeplan` is that of the environment that runs Snakemake, which need not be activated.
os.environ.update(
    PATH=os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
)


for chapter in [*CHAPTERS, "report"]:

    include: f"workflow/rules/{chapter}.smk"


held_until_the_end = hold_workspace()


rule everything:
    input:
        outputs_of_all_stages(),


rule rows:
    """
    All rows of params.yaml, of every chapter, boards side by side: snakemake --cores BOARDS rows. Then `dvc repro` measures nothing.
    """
    input:
        rows_of_all_devices(),


rule all:
    default_target: True
    input:
        # In a clone the page alone is missing.
        rules.report.output[0] if CURRENT else rules.everything.input,
