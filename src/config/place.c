/* not written yet */ typedef int tp_unwritten;
