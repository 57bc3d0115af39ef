"""The additional columns of keyed rows; see `intake`."""

SEQ, OP = "_hoodie_nb_seq", "_hoodie_nb_op"
FILE_ID, TASK = "_hoodie_nb_file_id", "_hoodie_nb_task"
THRESHOLD = "_hoodie_nb_threshold"
STORE, DELETE, DELETE_ALWAYS, STORE_ALWAYS = 0, 1, 2, 3
