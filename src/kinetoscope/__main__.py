from kinetoscope.cli import run

if __name__ == "__main__":
    run()
