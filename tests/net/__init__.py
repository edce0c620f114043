"""The net below changes of structure: every recording is judged before and after, endings and messages compared."""
