"""Parts of the benchmark of upserts: its workload, its arms, its meter, its check, its report."""
