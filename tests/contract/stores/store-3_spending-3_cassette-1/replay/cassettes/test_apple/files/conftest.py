collect_ignore_glob = ["*"]  # the files of runs are no tests of ours
