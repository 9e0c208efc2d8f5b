"""Statistics of results and datasets: exact where columns or histograms tell, marked else."""
