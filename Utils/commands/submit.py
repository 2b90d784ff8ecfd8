"""Write results to share to results/<device>/<date>/, or check such folders."""

from pathlib import Path

from Utils.analysis import submission


def main(args):
    if args.check:
        for folder in submission.check(Path(args.check).resolve()):
            print(f"{folder}: complete")
        return
    folder, left_out = submission.make(args.results_file, args.device_name, args.base)
    print(folder)
    if left_out:
        print(left_out)
    print("next: commit it and results/README.md, and open a pull request")
