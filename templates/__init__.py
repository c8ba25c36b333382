"""The templates that ship with cuplate: installed as ``cuplate.templates``, from the repository's ``templates/``."""
