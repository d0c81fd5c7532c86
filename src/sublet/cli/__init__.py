"""The command line: `verbs` read options, `parse` turns texts into values, `work` does it, `print` shows the answer."""
