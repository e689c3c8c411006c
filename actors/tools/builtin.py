"""What a toolbox holds when the host names nothing else."""

from understudy.actors.tools.files import file_edit, file_read, file_write, list_files
from understudy.actors.tools.search import grep

FILE_TOOLS = (file_read, list_files, file_write, file_edit, grep)
"""Files below cwd and workspace, and nothing else: no shell, no network."""
