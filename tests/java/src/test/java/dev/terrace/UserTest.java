package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import org.junit.jupiter.api.Test;

/** Users and tokens, with the server that TERRACE_TEST_CLOSED_ADDRESS names, whose user is ada with the password lace. */
class UserTest {
  private static final String URL =
      "jdbc:arrow-flight-sql://" + System.getenv("TERRACE_TEST_CLOSED_ADDRESS") + "/?useEncryption=false";

  private static Connection connect(String... options) throws SQLException {
    Properties properties = new Properties();
    for (int at = 0; at < options.length; at += 2) {
      properties.setProperty(options[at], options[at + 1]);
    }
    return DriverManager.getConnection(URL, properties);
  }

  private static String first(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
      assertTrue(rows.next());
      return rows.getString(1);
    }
  }

  private static void update(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      statement.executeUpdate(sql);
    }
  }

  @Test
  void nobodyIsLetInWithoutAPassword() {
    // Without a password the driver connects at the first call.
    assertThrows(
        SQLException.class,
        () -> {
          try (Connection nobody = connect()) {
            first(nobody, "SELECT 1");
          }
        });
    assertThrows(SQLException.class, () -> connect("user", "ada", "password", "wrong").close());
  }

  @Test
  void aTokenStandsForItsUser() throws SQLException {
    String token;
    try (Connection ada = connect("user", "ada", "password", "lace")) {
      token = first(ada, "CREATE TOKEN jdbc READ ONLY VALID FOR '1 hour'");
    }
    try (Connection reader = connect("token", token)) {
      assertEquals("ada", first(reader, "SELECT current_user"));
      assertThrows(SQLException.class, () -> update(reader, "CREATE TABLE refused (a BIGINT)"));
    }
  }

  @Test
  void whoChangesTheOwnPasswordHearsThatItIsDone() throws SQLException {
    try (Connection ada = connect("user", "ada", "password", "lace")) {
      update(ada, "CREATE USER bob PASSWORD 'correct horse'");
    }
    try (Connection bob = connect("user", "bob", "password", "correct horse")) {
      update(bob, "ALTER USER bob PASSWORD 'battery staple'");
    }
    try (Connection bob = connect("user", "bob", "password", "battery staple")) {
      assertEquals("bob", first(bob, "SELECT current_user"));
    }
  }
}
