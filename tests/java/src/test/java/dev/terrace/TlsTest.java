package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.junit.jupiter.api.Test;

/** TLS, with the server that TERRACE_TEST_TLS_ADDRESS names. */
class TlsTest {
  private static final String ADDRESS = System.getenv("TERRACE_TEST_TLS_ADDRESS");
  private static final String CA = System.getenv("TERRACE_TEST_TLS_CA");

  private static int answer(String options) throws SQLException {
    String url = "jdbc:arrow-flight-sql://" + ADDRESS + "/?" + options;
    try (Connection connection = DriverManager.getConnection(url);
        Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT CAST(42 AS INT) AS n")) {
      assertTrue(rows.next());
      return rows.getInt("n");
    }
  }

  @Test
  void connectsWithTheAuthorityOfTheServer() throws SQLException {
    assertEquals(42, answer("useEncryption=true&tlsRootCerts=" + CA));
  }

  @Test
  void refusesAServerOfAnUnknownAuthority() {
    assertThrows(SQLException.class, () -> answer("useEncryption=true"));
  }

  @Test
  void withoutEncryptionThereIsNoAnswer() {
    assertThrows(SQLException.class, () -> answer("useEncryption=false"));
  }
}
